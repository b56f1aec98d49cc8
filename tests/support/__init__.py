"""Classes and functions that tests of several folders use."""
