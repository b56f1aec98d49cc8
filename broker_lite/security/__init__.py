"""Security decisions without I/O: permissions of principals, and checks of logins and
certificates."""
