"""Classes that tests of several folders use."""
