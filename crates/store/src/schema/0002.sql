-- Queues of automatic allocation. `record` is the message of the client protocol that holds everything
-- about the queue; NULL once it was removed, so that its id is not used again.
CREATE TABLE queue_data (
    id INTEGER PRIMARY KEY,
    record BLOB
);
