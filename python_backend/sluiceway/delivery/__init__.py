"""The outside world's word on delivery, turned into core records: Envoy's access log."""
