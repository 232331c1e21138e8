"""Commands over the files of finished runs."""
