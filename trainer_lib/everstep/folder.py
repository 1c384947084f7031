from everstep.places import FolderPlace

__all__ = ["FolderPlace"]
