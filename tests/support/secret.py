"""The secret of every fleet in tests."""

SECRET = b"a secret for tests"
