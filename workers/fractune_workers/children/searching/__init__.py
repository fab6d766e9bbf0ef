"""The tuner instance's child: candidates of one operator after the other."""
