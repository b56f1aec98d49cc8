"""The documentation site: generates reference pages from the code and checks every link."""
