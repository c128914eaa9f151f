"""The ladder of a validation: modules, tokens, tasks, and the place of what is wrong. :mod:`.api` is the way in."""
