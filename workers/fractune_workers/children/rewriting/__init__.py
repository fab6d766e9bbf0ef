"""Passes that rewrite a Relax model, beside the planning of layouts."""
