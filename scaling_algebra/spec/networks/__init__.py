"""Networks as programs: the statements (``language``) and the ones that come with scalecalc (``library``)."""
