"""Numbers of a rank for Prometheus and OpenTelemetry: their names, a bounded number of series, and ways out."""
