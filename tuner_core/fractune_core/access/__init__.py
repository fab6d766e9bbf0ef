"""Who may call a server, and over what: addresses, certificates, tokens."""
