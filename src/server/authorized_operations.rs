//! What a client may do, as answers tell it (KIP-430): bits by the number of the operation. Without an authorizer
//! everyone may do everything.

/// With a topic: read, write, create, delete, alter, describe, describe and alter configs.
pub(crate) const TOPIC_OPERATIONS: i32 = 0b1101_1111_1000;

/// With the cluster: create, alter, describe, cluster action, describe and alter configs, idempotent write.
pub(crate) const CLUSTER_OPERATIONS: i32 = 0b1_1111_1010_0000;

/// With a group: read, delete, describe, describe and alter configs.
pub(crate) const GROUP_OPERATIONS: i32 = 0b1101_0100_1000;

/// Nobody asked.
pub(crate) const OPERATIONS_OMITTED: i32 = i32::MIN;
