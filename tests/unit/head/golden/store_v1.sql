PRAGMA auto_vacuum = INCREMENTAL;
BEGIN TRANSACTION;
CREATE TABLE answer (
        answer INTEGER PRIMARY KEY,
        session TEXT NOT NULL,
        owner TEXT NOT NULL,
        key TEXT,
        model TEXT NOT NULL,
        prompt BLOB NOT NULL,
        options BLOB NOT NULL,
        on_disconnect TEXT NOT NULL,
        created_wall_s REAL NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('admitted', 'placed', 'sent', 'finished')),
        finish TEXT NOT NULL DEFAULT '',
        error BLOB NOT NULL DEFAULT x'',
        prompt_tokens INTEGER NOT NULL DEFAULT 0,
        cached_tokens INTEGER NOT NULL DEFAULT 0,
        completion_tokens INTEGER NOT NULL DEFAULT 0,
        finished_wall_s REAL NOT NULL DEFAULT 0
    );
INSERT INTO "answer" VALUES(1,'s1','ann','k','m',X'010000000200000003000000',X'90','cancel',1000.5,'finished','stop',X'',3,1,2,1001.5);
INSERT INTO "answer" VALUES(2,'s2','ann',NULL,'m',X'010000000200000003000000',X'90','cancel',1000.5,'sent','',X'',0,0,0,0.0);
CREATE TABLE generation (
        generation INTEGER PRIMARY KEY,
        answer INTEGER NOT NULL REFERENCES answer ON DELETE CASCADE,
        session TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        node TEXT NOT NULL,
        worker INTEGER NOT NULL,
        numerics TEXT NOT NULL,
        first_offset INTEGER NOT NULL
    );
INSERT INTO "generation" VALUES(1,1,'s1',1,'n1',1,'x',0);
INSERT INTO "generation" VALUES(2,2,'s2',2,'n2',1,'x',0);
CREATE TABLE head (
        one INTEGER PRIMARY KEY CHECK (one = 1),
        head_id TEXT NOT NULL,
        boot INTEGER NOT NULL
    );
INSERT INTO "head" VALUES(1,'00112233445566778899aabbccddeeff',2);
CREATE TABLE schema_version (
        version INTEGER PRIMARY KEY,
        purpose TEXT NOT NULL,
        software TEXT NOT NULL,
        applied_wall_s REAL NOT NULL
    );
INSERT INTO "schema_version" VALUES(1,'answers, generations, tokens and peers','0.1.0',1000.0);
CREATE TABLE peer (
        public BLOB PRIMARY KEY,
        identity TEXT NOT NULL,
        incarnation INTEGER NOT NULL,
        hello_counter INTEGER NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "peer" VALUES(X'0102','n2',4,7);
CREATE TABLE tokens (
        answer INTEGER NOT NULL REFERENCES answer ON DELETE CASCADE,
        first INTEGER NOT NULL,
        generation INTEGER NOT NULL,
        ids BLOB NOT NULL,
        PRIMARY KEY (answer, first)
    ) WITHOUT ROWID;
INSERT INTO "tokens" VALUES(1,0,1,X'0A000000');
INSERT INTO "tokens" VALUES(1,1,1,X'0B0000000C000000');
CREATE UNIQUE INDEX answer_by_key ON answer (owner, key) WHERE key IS NOT NULL;
CREATE INDEX answer_by_session ON answer (session);
CREATE INDEX generation_by_answer ON generation (answer);
COMMIT;
