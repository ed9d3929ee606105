"""Engines: what turns prompts into token events. All behind one Protocol (engine/protocol.py)."""
