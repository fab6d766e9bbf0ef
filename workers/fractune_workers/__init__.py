"""Workers: what runs beside the queue. TVM is imported in their child processes only."""
