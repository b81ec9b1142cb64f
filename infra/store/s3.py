"""Objects in an S3 bucket (AWS, MinIO, SeaweedFS, ...), by boto3.

Credentials, region and endpoint come from where boto3 takes them: AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, AWS_PROFILE, AWS_REGION, AWS_ENDPOINT_URL_S3 and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.compat import get_current_datetime
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from trimtab.infra.store.manifest import CorruptArtifactError, StorageError, StoreUnavailableError
from trimtab.infra.store.objects import ObjectInfo

_ABSENT = {"404", "NoSuchKey", "NotFound"}
_LOST = {"412", "PreconditionFailed", "409", "ConditionalRequestConflict"}
_PART_BYTES = 16 << 20
_MAX_SKEW = 15 * 60.0


class StoreLocationError(StorageError, ValueError):
    """A bucket that cannot be used: it does not exist, or these credentials may not."""


class S3Objects:
    """A bucket and a prefix. A PUT, or the end of a multipart upload, is atomic in S3."""

    def __init__(self, bucket: str, prefix: str, *, max_attempts: int = 8) -> None:
        """`max_attempts` of each request, the first included.

        Raises StoreLocationError if the bucket cannot be reached with these credentials.
        """
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._transfer = TransferConfig(
            multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=4
        )
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        # Retries with back-off up to 20 s cover a server that is just restarting.
        config = Config(
            retries={"mode": "standard", "total_max_attempts": max_attempts},
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=16,
            s3={"addressing_style": "path" if endpoint else "auto"},
        )
        try:
            session = boto3.session.Session()
            region = session.region_name or "us-east-1"
            self._client: Any = session.client("s3", config=config, region_name=region)
            self._client.head_bucket(Bucket=bucket)
        except (ClientError, BotoCoreError) as error:
            raise StoreLocationError(
                f"cannot use s3://{bucket} at {endpoint or 'AWS'}: {error}. {_advice(error)}"
            ) from error

    def put_file(self, name: str, path: Path, sha256: str, *, link: bool = False) -> None:
        size = path.stat().st_size
        key = self._key(name)
        extra = {"Metadata": {"sha256": sha256}}
        with self._failing(name):
            self._client.upload_file(
                str(path), self.bucket, key, ExtraArgs=extra, Config=self._transfer
            )
            head = self._client.head_object(Bucket=self.bucket, Key=key)
        stored = (head["ContentLength"], head["Metadata"].get("sha256"))
        if stored != (size, sha256):
            raise CorruptArtifactError(
                f"s3://{self.bucket}/{key} was stored with (size, sha256) {stored}; "
                f"expected {(size, sha256)}"
            )

    def get_file(self, name: str, path: Path) -> None:
        with self._failing(name):
            self._client.download_file(
                self.bucket, self._key(name), str(path), Config=self._transfer
            )
        os.chmod(path, 0o444)

    def get_bytes(self, name: str) -> bytes | None:
        answer = self._get(name)
        return answer[0] if answer else None

    def put_bytes(self, name: str, data: bytes) -> None:
        with self._failing(name):
            self._client.put_object(Bucket=self.bucket, Key=self._key(name), Body=data)

    def swap_bytes(self, name: str, data: bytes, expected: bytes | None) -> bool:
        condition = {"IfNoneMatch": "*"}
        if expected is not None:
            present = self._get(name)
            if present is None or present[0] != expected:
                return False
            condition = {"IfMatch": present[1]}
        with self._failing(name):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self._key(name), Body=data, **condition
                )
            except ClientError as error:
                if _code(error) not in _LOST:
                    raise
                # boto3 repeats a request whose answer got lost; then "lost" was to ourselves.
                return self.get_bytes(name) == data
        return True

    def list(self, prefix: str) -> dict[str, ObjectInfo]:
        root = self._key(f"{prefix.rstrip('/')}/" if prefix else "")
        with self._failing(prefix):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self.bucket, Prefix=root
            )
            return {
                item["Key"][len(self.prefix) :]: ObjectInfo(
                    item["Size"], item["LastModified"].timestamp()
                )
                for page in pages
                for item in page.get("Contents", [])
            }

    def delete(self, name: str) -> None:
        with self._failing(name):
            self._client.delete_object(Bucket=self.bucket, Key=self._key(name))

    def now(self) -> float:
        with self._failing(self.prefix):
            return _date(self._client.head_bucket(Bucket=self.bucket))

    def drop_unfinished(self, before: float) -> int:
        """Multipart uploads whose writer died: they cost space and are in no listing."""
        with self._failing(self.prefix):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix
            )
            left = [
                upload
                for page in pages
                for upload in page.get("Uploads", [])
                if upload["Initiated"].timestamp() < before
            ]
            for upload in left:
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
        return len(left)

    def _key(self, name: str) -> str:
        return self.prefix + name

    def _get(self, name: str) -> tuple[bytes, str] | None:
        """Bytes and ETag, or None if absent."""
        try:
            with self._failing(name):
                answer = self._client.get_object(Bucket=self.bucket, Key=self._key(name))
                return answer["Body"].read(), answer["ETag"]
        except KeyError:
            return None

    @contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        """Turn boto3's errors into KeyError (no such object) and StoreUnavailableError."""
        try:
            yield
        except (ClientError, BotoCoreError, Boto3Error) as error:
            if isinstance(error, ClientError) and _code(error) in _ABSENT:
                raise KeyError(name) from error
            raise StoreUnavailableError(f"s3://{self.bucket}/{self._key(name)}: {error}") from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _advice(error: Exception) -> str:
    answer = error.response if isinstance(error, ClientError) else {}
    if "date" in answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}):
        ahead = get_current_datetime().timestamp() - _date(answer)
        if abs(ahead) > _MAX_SKEW:
            way = "ahead of" if ahead > 0 else "behind"
            return (
                f"This machine's clock is {abs(ahead) / 60:.0f} minutes {way} the server's, and S3 "
                "refuses requests that are more than 15 minutes off: set the clock (NTP)"
            )
    return (
        "Check that the bucket exists and that AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and "
        "AWS_ENDPOINT_URL_S3 are right"
    )


def _date(answer: Any) -> float:
    """When the server answered, by its clock."""
    return parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"]).timestamp()
