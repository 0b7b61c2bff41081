"""The operating systems that wheels are built for, each behind one interface: nothing else asks for
their names.

`facts` has the names, the machines with their aliases, and what tells one platform from another in
a word; it imports nothing and anything may import it. `base` is the interface: the build
environment, the rendered files and the job of a plan. `linux`, `macos` and `windows` are its
implementations. A new platform is a module here, an entry in `facts`, a folder of templates under
dockerfiles/ and data in the catalogue.
"""
