/* SPDX-License-Identifier: Apache-2.0 */
#ifndef MOONCAKEFS_RPC_METHODS_H
#define MOONCAKEFS_RPC_METHODS_H

/*
 * Every RPC method there is, with the shape of its params array and of its result; docs/rpc.md is
 * checked against this table.  X(identifier, name, params, result, what it does)
 *
 * session: what Register returned, 0 for a caller that is no node.  Keys and names are str or bin
 * and may hold any bytes.  An object is [version, size, lease_ms, mode, uid, gid, mtime_ns,
 * data_type, hard_pin, shard, [replica ...], soft_pin_ms, group], a replica [id, type, status,
 * size, node id, node name, endpoint, connected], with segment name and address behind it when its
 * type is MEMORY (0). A batch answers per item, [0, item] or [code,
 * text].
 */

#define MCFS_MASTER_METHODS(X)                                                                     \
    X(REGISTER, "Register", "[node id, name, endpoint, capacity, used]",                           \
      "[session, lease_ms, cluster id]",                                                           \
      "A node makes itself known on this connection, on which it will hear Recall and "            \
      "DiscardReplicas; InventoryItems and InventoryEnd follow.")                                  \
    X(INVENTORY_ITEMS, "InventoryItems",                                                           \
      "[session, [[tenant, key, version, size, mode, uid, gid, mtime_ns, data_type, (leaving?)] "  \
      "...]]",                                                                                     \
      "[index ...]",                                                                               \
      "A part of what the node stores; the result names the items that are nobody's any more.  "   \
      "leaving: the node was evicting it when it died.")                                           \
    X(INVENTORY_END, "InventoryEnd", "[session]", "[dropped]",                                     \
      "The inventory is complete: replicas that it did not name are withdrawn.")                   \
    X(PING, "Ping", "[session, capacity, used, objects]", "[nodes, discards waiting]",             \
      "Keeps the session alive; a session the master does not know is CLIENT_NOT_FOUND.")          \
    X(RECALL_DONE, "RecallDone", "[session, [[tenant, key, version] ...]]", "nil",                 \
      "The node caches nothing of these any more.")                                                \
    X(DISCARDED, "Discarded", "[session, [version ...]]", "nil",                                   \
      "The node has dropped these versions from its store.")                                       \
    X(GET_REPLICA_LIST, "GetReplicaList", "[session, tenant, key]", "object",                      \
      "Finds an object; the session gets a lease.")                                                \
    X(BATCH_GET_REPLICA_LIST, "BatchGetReplicaList", "[session, tenant, [key ...]]",               \
      "[[0, object] or [code, text] ...]", "The same for many keys.")                              \
    X(GET_REPLICA_LIST_BY_REGEX, "GetReplicaListByRegex", "[session, tenant, pattern, cursor]",    \
      "[next cursor, [[key, object] ...]]",                                                        \
      "Objects in whose key a pattern is found, from cursor 0 on; next cursor 0: no more.")        \
    X(EXIST_KEY, "ExistKey", "[session, tenant, key]", "bool",                                     \
      "Whether an object is there; grants a lease too.")                                           \
    X(BATCH_EXIST_KEY, "BatchExistKey", "[session, tenant, [key ...]]", "[bool ...]",              \
      "The same for many keys.")                                                                   \
    X(LOOKUP, "Lookup", "[session, tenant, path]", "[object or nil, directory's mtime_ns or nil]", \
      "What a path is: an object, a directory, both or neither.")                                  \
    X(LIST, "List", "[session, tenant, directory, cookie, max]",                                   \
      "[next cookie, [[name, directory?, shadowed?, cookie, version, size, mode, uid, gid, "       \
      "mtime_ns] ...]]",                                                                           \
      "Children of a directory (\"\" or ending in '/') behind a cookie of this master's run; "     \
      "next cookie 0: no more.")                                                                   \
    X(LIST_NAMES, "ListNames", "[session, tenant, directory, cookie, max]",                        \
      "[next cookie, [[name, kind, cookie] ...]]",                                                 \
      "The names alone; kind: 0 object, 1 directory, 2 an object that a directory shadows.")       \
    X(LOOKUP_AHEAD, "LookupAhead", "[session, tenant, path, max]",                                 \
      "[object or nil, directory's mtime_ns or nil, "                                              \
      "[[name, version, size, lease_ms, mode, uid, gid, mtime_ns] ...]]",                          \
      "The same, and up to max objects that stand behind it in its directory, leased, too.")       \
    X(PUT_START, "PutStart", "[session, tenant, key, size, replace?, (config)]",                   \
      "[version] or [version, [[replica id, segment name, endpoint, address, size] ...]]",         \
      "Begins a put; OBJECT_ALREADY_EXISTS unless replacing is meant.  config is a map with any "  \
      "of "                                                                                        \
      "soft_pin_ms (nil: the default's), hard_pin and group; without it a replaced object's "      \
      "stay.  With replica_num, and preferred_segments, allocation_strategy and wait_ms (for "     \
      "room) beside it, the bytes go into memory segments, where the answer says.")                \
    X(PUT_END, "PutEnd",                                                                           \
      "[session, tenant, key, version, size, mode, uid, gid, mtime_ns, data_type, no_replace?, "   \
      "from key or nil, from version]",                                                            \
      "[replaced version, superseded?, lease_ms, shard]",                                          \
      "Makes a put visible whole; with a from key it is a rename.  OBJECT_HAS_LEASE: come again.") \
    X(PUT_REVOKE, "PutRevoke", "[session, version]", "nil", "Gives a put up.")                     \
    X(REMOVE, "Remove", "[session, tenant, key, version or 0, force?]", "[removed version]",       \
      "Removes an object; the result is the version that the session's own store may drop.")       \
    X(BATCH_REMOVE, "BatchRemove", "[session, tenant, [[key, version or 0] ...], force?]",         \
      "[[0, removed version] or [code, text] ...]", "The same for many keys.")                     \
    X(REMOVE_BY_REGEX, "RemoveByRegex", "[session, tenant, pattern, force?, cursor]",              \
      "[next cursor, [[key, 0, removed version] or [key, code, text] ...]]",                       \
      "Removes objects in whose key a pattern is found, from cursor 0 on; next cursor 0: no "      \
      "more.")                                                                                     \
    X(REMOVE_ALL, "RemoveAll", "[session, tenant, force?, cursor]",                                \
      "[next cursor, [[key, 0, removed version] or [key, code, text] ...]]",                       \
      "Removes a tenant's objects in the same way.")                                               \
    X(SET_ATTR, "SetAttr",                                                                         \
      "[session, tenant, key, version or 0, valid bits, mode, uid, gid, mtime_ns]",                \
      "[mode, uid, gid, mtime_ns]", "Changes attributes; bits: 1 mode, 2 uid, 4 gid, 8 mtime.")    \
    X(SET_PIN, "SetPin", "[session, tenant, key, hard?]", "nil", "Sets or clears the hard pin.")   \
    X(SET_SOFT_PIN, "SetSoftPin", "[session, tenant, key, ms or nil]", "[ms]",                     \
      "Pins softly for a time (nil: the default's; 0: not any more).")                             \
    X(TENANTS, "Tenants", "[]", "[[tenant, objects, bytes] ...]", "Tenants that have objects.")    \
    X(NODES, "Nodes", "[]",                                                                        \
      "[[node id, name, endpoint, connected?, capacity, used, objects, ms since last ping] ...]",  \
      "Nodes that the master knows.")                                                              \
    X(STATUS, "Status", "[]", "map", "Figures of the master, by name.")                            \
    X(SNAPSHOT_CREATE, "SnapshotCreate", "[]", "[id]",                                             \
      "Begins a checkpoint now; SnapshotState tells when it is done.")                             \
    X(SNAPSHOT_STATE, "SnapshotState", "[]", "[running?, last id, last error]",                    \
      "What the checkpoint does.")                                                                 \
    X(SNAPSHOT_LIST, "SnapshotList", "[]", "[[id, created_ms, bytes] ...]",                        \
      "Published snapshots, newest first.")                                                        \
    X(SNAPSHOT_FILES, "SnapshotFiles", "[id]", "[[name, size, mtime_ns] ...]",                     \
      "Files of a published snapshot.")                                                            \
    X(SNAPSHOT_READ, "SnapshotRead", "[id, name, offset, length]", "bin", "Bytes of such a file.") \
    X(SNAPSHOT_PRUNE, "SnapshotPrune", "[keep or 0, min_age_ms]", "[snapshots, files]",            \
      "Deletes all but the newest `keep` snapshots (0: none), and files of that age that "         \
      "interrupted checkpoints left; how many.")                                                   \
    X(EXCHANGE, "Exchange",                                                                        \
      "[session, tenant, key, version, new version, other key, its version, its new version]",     \
      "[lease_ms]",                                                                                \
      "Two objects, whose bytes the node has given each other's keys under versions from "         \
      "PutStart, "                                                                                 \
      "get each other's names in one step.  OBJECT_HAS_LEASE: come again.")                        \
    X(BATCH_EVICT_DISK_REPLICA, "BatchEvictDiskReplica",                                           \
      "[session, soft pins, too?, [[tenant, key, version] ...]]",                                  \
      "[[0, nil] or [code, text] ...]",                                                            \
      "Withdraws replicas that the node is about to evict.  ILLEGAL_CLIENT: pinned; "              \
      "OBJECT_REPLICA_BUSY: softly pinned, or being put; OBJECT_HAS_LEASE: recalled, not this "    \
      "time; REPLICA_IS_GONE: nobody is told of it, it may go.")                                   \
    X(MOUNT_SEGMENT, "MountSegment", "[session, segment id, name, base, size, endpoint]", "nil",   \
      "The node lends memory, from which the master allocates; an id that is there already, at "   \
      "the same place, goes on with what it holds.")                                               \
    X(UNMOUNT_SEGMENT, "UnmountSegment", "[session, segment id]", "[objects]",                     \
      "Takes it away at once; how many objects went with it.")                                     \
    X(GRACEFUL_UNMOUNT_SEGMENT, "GracefulUnmountSegment", "[session, segment id, ms]",             \
      "[ranges left]",                                                                             \
      "Nothing is allocated there any more; it goes with its last range, at the latest after "     \
      "ms.")                                                                                       \
    X(GET_ALL_SEGMENTS, "GetAllSegments", "[]",                                                    \
      "[[segment id, name, node id, endpoint, base, size, used, largest free, ranges, state] "     \
      "...]",                                                                                      \
      "Memory segments; state: ok, awaited or draining.")                                          \
    X(QUERY_SEGMENT, "QuerySegment", "[name or segment id]",                                       \
      "[[segment id, name, node id, endpoint, base, size, used, largest free, ranges, state] "     \
      "...]",                                                                                      \
      "The segments of a name or an id.")

/* What a node answers to its peers and to the command line. */
#define MCFS_NODE_METHODS(X)                                                                       \
    X(READ_REPLICA, "ReadReplica", "[tenant, key, version, offset, length]", "bin",                \
      "Bytes of a stored version; REPLICA_IS_GONE when it is not stored.")                         \
    X(HOLD_REPLICA, "HoldReplica", "[holder, tenant, key, version, ms]", "nil",                    \
      "Keeps a stored version readable for so long, whatever becomes of its key (0: not any "      \
      "more); "                                                                                    \
      "holder: the node id of who asks.")                                                          \
    X(STAGE_OPEN, "StageOpen", "[]", "[stage]", "Begins to send an object in pieces.")             \
    X(STAGE_WRITE, "StageWrite", "[stage, offset, bin]", "nil", "A piece.")                        \
    X(STAGE_COMMIT, "StageCommit", "[stage, tenant, key, size]", "[version]",                      \
      "Stores the pieces as one object and publishes it.")                                         \
    X(REMOVE_KEY, "RemoveKey", "[tenant, key, force?]", "nil", "Removes an object everywhere.")    \
    X(LOCATE, "Locate", "[tenant, key, version]",                                                  \
      "[path, offset, length, crc32c or nil, whole file?]",                                        \
      "Where the node's store holds a version.")                                                   \
    X(NODE_STATUS, "NodeStatus", "[]", "map", "Figures of the node, by name.")

/* Notifications from the master to a session: [2, name, params]. */
#define MCFS_SESSION_NOTICES(X)                                                                    \
    X(RECALL, "Recall", "[tenant, key, version]", "",                                              \
      "Stop serving this from caches and answer with RecallDone.")                                 \
    X(DISCARD_REPLICAS, "DiscardReplicas", "[[tenant, key, version] ...]", "",                     \
      "These versions are nobody's: drop them and answer with Discarded.")

#endif
