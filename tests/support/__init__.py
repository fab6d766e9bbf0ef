"""Helpers of the tests: processes to test against, samples, and what stands in for hardware."""
