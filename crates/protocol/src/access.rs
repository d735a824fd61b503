//! Access files and the server directory.
