"""Facts about the operating systems that wheels are built for: names, machines, traits.

`facts` has the names, the machines with their aliases, and what tells one platform from another in
a word; it imports nothing of the farm but text and errors, and anything may import it. `shape` has
the types of these words for files. What renders and resolves a plan for a platform is in
`farm.plan.platforms`.
"""
