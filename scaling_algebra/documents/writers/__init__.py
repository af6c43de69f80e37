"""One module per format: ``SUFFIX``, the ending of its files, and ``write``, which renders documents.

Adding a format: one more module here.
"""
