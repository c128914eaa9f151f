"""Views of what commands found: terminal, JSON and generated reference pages."""
