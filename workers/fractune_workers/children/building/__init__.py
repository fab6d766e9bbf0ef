"""The builder's child: a trace becomes machine code."""
