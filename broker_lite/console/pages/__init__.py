"""The data of each page, in one module for each noun, from the newest reading of the cluster
(``observing``) and from the public client."""
