"""The web page at ``/``: a chat box that shows its own stream's levels. Static files, no build step."""
