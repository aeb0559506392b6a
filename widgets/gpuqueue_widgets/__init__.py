"""The panel as a widget in a notebook cell: not here yet.

Its view is there already, in ``widgets/panel/panel.mjs``, and JupyterLab's sidebar shows it.
"""
