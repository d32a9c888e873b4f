"""What operators see of the router: metrics, logs and traces."""
