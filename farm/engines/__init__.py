# `base` is the contract. `docker`, `host`, `swarm` and `github` are the engines, each with its helpers beside it;
# `admission` decides which job goes to which runner, `images` makes toolchain images, `transfer` moves files.
