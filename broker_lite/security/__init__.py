"""Decide about security without I/O: permissions of principals, logins, certificates and quotas."""
