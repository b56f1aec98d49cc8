"""The data of each page, in one module for each noun. The functions take the data from the newest
reading of the cluster (``observing``) and from the public client.
"""
