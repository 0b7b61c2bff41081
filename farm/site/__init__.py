"""The static site beside the index: what is there, what PyTorch and others have, what could be built.

`wheels` reads the index, `tested` its smoke tests; `answers` is the data of the page's search,
`pages` makes the HTML, `build` writes the files that changed.
"""
