"""Who may call the server: TLS, tokens, scopes."""
