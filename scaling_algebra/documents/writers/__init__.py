"""One module per format, with its file name suffix ``SUFFIX`` and the function ``write``, which renders documents.

To add a format, add a module here.
"""
