# `base` is the contract. `docker`, `host`, `swarm` and `github` are the engines, each with its helpers beside it;
# `images` makes toolchain images, `transfer` moves files.
