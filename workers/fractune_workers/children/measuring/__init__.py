"""The measurer's child: confined first, then TVM; it runs artifacts under one timing policy."""
