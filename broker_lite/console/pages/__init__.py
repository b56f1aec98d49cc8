"""The data of each page, one module per noun. A page uses the cluster's reading and the public
client."""
