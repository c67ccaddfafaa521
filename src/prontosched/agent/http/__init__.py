"""HTTP: routes, who may ask, metrics for Prometheus, the event stream, the server and a client."""
