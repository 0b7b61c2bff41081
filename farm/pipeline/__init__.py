"""The main job: plan, image, build, repair, verify, publish, install, smoke."""
