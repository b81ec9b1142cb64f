"""Make the stack's bucket where it is not there yet: python -m trimtab.infra.stack.bucket."""

from __future__ import annotations

BUCKET = "trimtab"


def create_bucket(endpoint: str | None = None, name: str = BUCKET) -> None:
    """Make a bucket; keys, and the endpoint where none is given, are the environment's."""
    import boto3

    # A session of its own: boto3 keeps the keys of the first one that it made.
    client = boto3.session.Session().client("s3", endpoint_url=endpoint, region_name="us-east-1")
    found = client.list_buckets()["Buckets"]
    if name not in {each["Name"] for each in found}:
        client.create_bucket(Bucket=name)


if __name__ == "__main__":
    create_bucket()
