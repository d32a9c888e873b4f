"""What makes the files of this repository that no one writes by hand."""
