"""The format on disk: all names, columns and fields, and the readers of any number of ranks within bounded memory.

Grammar: :mod:`layout` (tables), :mod:`run_directory` and :mod:`manifest`, :mod:`anomaly_json`, :mod:`metrics_schema`,
:mod:`event_file`. Finding: :mod:`directories` groups the ranks' directories into runs, :mod:`table_files` looks at each
file once. Reading: :mod:`duckdb_reader` makes one view a signal over the files of :mod:`listing` or of a packed run
(:mod:`packed`), :mod:`csv_reader` reads CSV without DuckDB, :mod:`sqlite_reader` copies databases for DuckDB,
:mod:`chunks` reads any file in pieces, :mod:`batches` step by step as rules take them. Damaged lines and files go to
:class:`probe.core.storage.problems.Problems`; the rest is read. Places are paths, or objects in storage by
:mod:`location`.
"""
