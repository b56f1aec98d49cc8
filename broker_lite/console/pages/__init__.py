"""The data of each page, in one module for each noun. A page uses the cluster's reading and the
public client.
"""
