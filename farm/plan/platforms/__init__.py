"""What each platform makes of a plan, behind one interface: nothing else asks for their names.

`base` is the interface: the build environment, the rendered files and the job of a plan. `linux`,
`macos` and `windows` are its implementations. A new platform is a module here, an entry in
`farm.platforms.facts`, a folder of templates under dockerfiles/ and data in the catalogue.
"""
