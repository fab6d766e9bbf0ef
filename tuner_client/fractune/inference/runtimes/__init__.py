"""Other runtimes that serve a bundle's model where they were faster."""
