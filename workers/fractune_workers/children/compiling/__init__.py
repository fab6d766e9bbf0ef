"""The compiler's child: model file to operators, and later model file and schedules to a bundle."""
