"""Control of hardware settings: claims of jobs, arbitration, journal, apply and restore."""
