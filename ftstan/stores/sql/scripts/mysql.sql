-- Tables of a streaming server in MySQL or MariaDB (schema version 1). Run it again as often as you like.
-- Clients.id has a collation that keeps "me" and "ME" apart, which the original's script leaves to the server.
-- LONGBLOB where the original's script has BLOB: that would end at 65,535 bytes a message.

CREATE TABLE IF NOT EXISTS ServerInfo (
    uniquerow INT DEFAULT 1, id VARCHAR(1024), proto BLOB, version INTEGER,
    PRIMARY KEY (uniquerow)) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS Clients (
    id VARCHAR(1024) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, hbinbox TEXT, proto BLOB,
    PRIMARY KEY (id(256))) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS Channels (
    id INTEGER, name VARCHAR(1024) NOT NULL, maxseq BIGINT UNSIGNED DEFAULT 0, maxmsgs INTEGER DEFAULT 0,
    maxbytes BIGINT DEFAULT 0, maxage BIGINT DEFAULT 0, deleted BOOL DEFAULT FALSE,
    PRIMARY KEY (id), INDEX Idx_ChannelsName (name(256))) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS Messages (
    id INTEGER, seq BIGINT UNSIGNED, timestamp BIGINT, size INTEGER, data LONGBLOB,
    CONSTRAINT PK_MsgKey PRIMARY KEY (id, seq), INDEX Idx_MsgsTimestamp (timestamp)) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS Subscriptions (
    id INTEGER, subid BIGINT UNSIGNED, lastsent BIGINT UNSIGNED DEFAULT 0, proto BLOB, deleted BOOL DEFAULT FALSE,
    CONSTRAINT PK_SubKey PRIMARY KEY (id, subid)) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS SubsPending (
    subid BIGINT UNSIGNED, `row` BIGINT UNSIGNED, seq BIGINT UNSIGNED DEFAULT 0, lastsent BIGINT UNSIGNED DEFAULT 0,
    pending BLOB, acks BLOB,
    CONSTRAINT PK_MsgPendingKey PRIMARY KEY (subid, `row`), INDEX Idx_SubsPendingSeq (seq)) ENGINE=InnoDB;
CREATE TABLE IF NOT EXISTS StoreLock (id VARCHAR(30), tick BIGINT UNSIGNED DEFAULT 0) ENGINE=InnoDB;
