"""Explanations of messages of loaders, Python, CUDA and compilers: the cause, the culprit, the
cure.

Which message means what: `messages.yaml`. Loaders name the file that they were asked for, seldom
the one that is wrong. What is wrong is looked for in the files: in the wheel, or in the folder of
the installed package. Where nothing is wrong there, it is the machine, and the explanation says
which of its parts.

Behind "[WinError 126] The specified module could not be found" Windows does not say which file it
missed. Python names the file that it was asked to load; torch/__init__.py loads torch/lib/*.dll one
by one in the order of the folder, which NTFS keeps sorted without regard to case. So the file named
is the first one with a broken chain of imports, and usually a bystander.
"""
